"""Trainings on other machines: Dask starts them, and they report through an address that takes certificates only.

The store stays the only truth. A task carries the address, run, lease and the token of that start, nothing else; the
worker fetches the files of its run and the arrays of its data set, which it keeps by their hash, and reports as one
beside the store does. If the server ends meanwhile, the worker trains on and asks again until there is another.
"""
