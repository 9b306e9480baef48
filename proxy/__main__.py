"""`python -m proxy`: the same command line as `evidence-proxy`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
