"""Does the learning rate of runs that are there transfer?"""
