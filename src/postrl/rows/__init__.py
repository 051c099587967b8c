"""Rows of a data set, whatever they came as, made into plain values, messages and token ids."""
