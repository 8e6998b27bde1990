"""What operations compute, written once for every target: expressions of elements and programs over rows.

Algorithms that are nothing but such a formula are here, too, and take the generator of a target as an argument: both
tables list the same classes, each with its own generator.
"""
