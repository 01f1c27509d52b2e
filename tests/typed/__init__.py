"""What type checkers say of programs that use numbasync: mypy --strict and pyright read these.

`assert_type` is what a program may rely on. A line that ends in `type: ignore` is wrong, and has to
be found wrong: an ignore that is not needed is an error. Nothing here is run.
"""
