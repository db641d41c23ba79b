"""Selection programs, one family and engine a file, with the deployments they are solved for."""
