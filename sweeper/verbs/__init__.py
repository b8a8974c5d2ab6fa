"""What can be asked of sweeper: a verb takes a Request and gives an Answer, and knows no screen."""
