"""One module a page, with the REST twin beside it. make_app includes each module's

router       the APIRouter of its paths; pages with include_in_schema=False, twins under /api
NAVIGATION   optional: Links of the side
TABS         optional: Links of a run's tabs
ORDER        optional: a number; routers with smaller ones are asked first (50 where absent)
"""
