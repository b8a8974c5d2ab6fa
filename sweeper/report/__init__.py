"""Reports: tables, plots, pages and logs; they read and never decide."""
