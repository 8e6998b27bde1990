"""Random problems for every public function, held against an oracle that shares no code with the library.

    python tests/fuzz run --seconds 180                  # all operations, the seed from the date
    python tests/fuzz run --problems 100000 --operations conv,max_pool --target opencl
    python tests/fuzz repeat 20261122 conv 137           # one problem again, by the name that a fault was printed with
    python tests/fuzz repeat 20261122 conv 137 --shrink  # and the simplest one that fails alike
    python tests/fuzz list

A problem is named by (seed, operation, number). Sixteen numbers that follow each other share a structure (shapes,
strides, types, arguments), so that code is compiled once for all of them; data, scale factors, places in memory and
special values are each problem's own. Every second structure or so gives an argument that makes no sense instead.

What is checked of each problem:

- the results are those of the oracle (PyTorch in float64 where it has the operation, else NumPy), within an error
  derived here from the operation's terms;
- nothing beside the outputs is written, and nothing beside the inputs is read: arrays end where a page begins that
  must not be touched, or begin where one ends; between their elements, and around them, there is NaN; inputs are
  as they were;
- with beta = 0 what an output held is not read; an output that is refused is as it was;
- what is refused is refused by an exception of the library; the process lives on.
"""
