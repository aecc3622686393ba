"""Who there is: processes, threads, images, address spaces and lineage. Pure; fed with changes."""
