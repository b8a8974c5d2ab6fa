"""Which change wins at the target?"""
