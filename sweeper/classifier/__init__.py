"""What parameters and operations of any module are, read off forward passes at several sizes."""
