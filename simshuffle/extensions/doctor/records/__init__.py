"""Read records of real trainings: from our own recorder, or from the traces of other
programs.
"""
