"""Of settings varied one at a time: carry, retune or leave each."""
