"""One faulty device, from driver file to taint and back, told step by step as each real part sees it."""
