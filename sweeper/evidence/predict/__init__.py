"""Which loss will the large run reach?"""
