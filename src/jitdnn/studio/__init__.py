"""The studio: data sets, training, evaluation and a look inside of nets, in a browser, on this machine first.

Its packages, from top to bottom: `web` (pages and REST) and `client`; `sweeps`; `work` (the queue, its processes) and
`export`; `look` (evaluation, layers); `nets`; `data`; `store` (one SQLite file). Each imports those below it and
the modules beside them (`plugins`, `csv_text`, `processes` ...), which import none of them.
The extra `jitdnn[studio]` brings what the pages need; `store` and `work` need nothing but the library.
"""
