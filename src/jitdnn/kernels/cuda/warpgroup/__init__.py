"""Matrix products by warpgroups (`wgmma`) on operands that the copy engine brings (TMA): sm_90a."""
