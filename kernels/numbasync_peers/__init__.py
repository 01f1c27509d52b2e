"""Programs that `numbasync bench` compares with: other libraries, and the driver called by hand.

They are in a checkout, not in the wheel; `pip install -e '.[bench]'` installs the libraries.
"""
