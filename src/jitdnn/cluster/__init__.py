"""Work on other machines, by Dask: its workers are places, each start of a run is one of its tasks.

`places` and `engine` are what the studio's queue and `jitdnn train --on` share: devices as resources of workers, and a
lease for each start, so that of two starts of one run the older one counts for nothing. `training` and `task` are the
two sides of `jitdnn train --on`. The extra `jitdnn[cluster]` has Dask; importing this needs nothing.
"""
