"""The gate for CI: is the uncertainty of one result worse than that of another?"""
