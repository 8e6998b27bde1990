"""Recurrent nets on processors, forward and backward."""
