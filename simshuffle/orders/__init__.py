"""The order in which loaders hand out samples, one file for each family of them."""
