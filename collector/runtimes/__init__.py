"""Frames of managed runtimes: code that is made while a program runs, and functions that an interpreter carries out."""
