"""Graphs of operations that are prepared once for each kind of inputs and then run as lists of launches.

ir          values of known shape and type, and the nodes that make them
operand     arrays that are not there yet: NumPy's and this library's functions of them become nodes
tracer      steps of a front, run over such arrays
passes      graphs from graphs: what is the same and costs less
lower       nodes as calls of the public functions, whose launches are recorded
plan        what runs for one kind of inputs; engine: a table of those
"""
