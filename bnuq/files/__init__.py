"""Files in and out: what a file holds, HDF5 that nobody vouched for, writing beside and renaming."""
