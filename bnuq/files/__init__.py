"""Files in and out: what a file holds, untrusted HDF5, writing beside and renaming."""
