"""Why each rule of ``jaxgnn.fuse`` gives the same numbers, in proofs that are checked."""
