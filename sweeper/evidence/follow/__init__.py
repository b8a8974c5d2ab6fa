"""Is the large run on its course?"""
