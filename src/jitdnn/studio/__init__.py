"""The studio: data sets, training, evaluation and a look inside of nets, in a browser, on this machine first.

Its rooms, from top to bottom: `web` (pages and REST) and `client`; `sweeps`; `work` (the queue, its processes) and
`ship` (export); `look` (evaluation, layers); `nets`; `data`; `store` (one SQLite file). A room imports those below it.
The extra `jitdnn[studio]` brings what the pages need; `store` and `work` need nothing but the library.
"""
