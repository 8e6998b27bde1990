"""The studio's pages and their REST twins, over HTTP: FastAPI, Jinja2 templates, htmx and uPlot, no build step."""
