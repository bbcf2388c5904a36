"""The doctor: it tells from the statistics of a run's steps what ails it, or what would make it better.

It needs torch alone, so that it reads what other trainers have logged.
"""
