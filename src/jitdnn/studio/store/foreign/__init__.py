"""Runs that other programs wrote: folders of TensorBoard and of W&B, jobs of DIGITS, logs of Caffe, tables of curves.

Nothing of them is run, and no pickle is read.
"""

from jitdnn.studio.store.foreign.bringing import bring, look

__all__ = ["bring", "look"]
