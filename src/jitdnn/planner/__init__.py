"""WHICH algorithm runs: by stored and estimated times (`get`), or by measuring now (`find`)."""
