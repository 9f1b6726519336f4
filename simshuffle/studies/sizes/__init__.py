"""Sizes of a job: the bytes and samples that each rank holds, reads and sends in an
epoch.
"""
