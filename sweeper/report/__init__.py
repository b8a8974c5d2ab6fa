"""Reports: tables, figures, pages, progress; they read and never decide."""
