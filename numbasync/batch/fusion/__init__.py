"""Which recorded nodes one kernel computes, and where its values lie."""
