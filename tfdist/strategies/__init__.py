"""Custom `tf.distribute` strategies and the protocol by which their steps survive lost workers."""
