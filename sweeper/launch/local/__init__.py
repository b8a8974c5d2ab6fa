"""Worker processes on this machine."""

from sweeper.launch.local.executor import Local

__all__ = ["Local"]
