"""Knowledge bases in files and folders, a module for each format."""
