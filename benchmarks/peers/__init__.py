"""Programs that numbasync is compared with: other libraries, and the driver called by hand.

`pip install -e '.[bench]'` installs the libraries.
"""
