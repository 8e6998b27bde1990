"""A trained net looked at: evaluation, answers to images, activations, gradients, occlusion, what units look for."""
