"""What a search, a ladder or a measurement lacks, trained and recorded."""
