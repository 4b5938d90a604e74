"""Exits with 0 where this interpreter can run the programs beside it."""

import django
import psycopg  # noqa: F401

if django.VERSION < (4, 2):
    import psycopg2  # noqa: F401  Django's driver before 4.2
