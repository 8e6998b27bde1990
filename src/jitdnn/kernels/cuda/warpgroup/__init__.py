"""Matrix products by warpgroups (`wgmma`) on operands that are copied by TMA: sm_90a."""
