"""Recurrent layers: persistent kernels whose thread blocks keep weights in shared memory from step to step."""
