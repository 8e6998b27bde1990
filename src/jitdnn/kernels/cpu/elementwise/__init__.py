"""The generator of elementwise loops on processors."""
