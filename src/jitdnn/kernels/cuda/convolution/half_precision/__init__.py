"""What the convolutions in half precision with few channels, in all or in a group, share."""
