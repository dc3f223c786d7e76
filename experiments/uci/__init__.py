"""The UCI regression experiment of Teye, Azizpour and Smith 2018: its networks trained anew, and its Table 1."""
