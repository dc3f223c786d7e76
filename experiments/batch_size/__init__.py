"""One network per training batch size on Fashion-MNIST: Figure 1 and Table 1 of Mukhoti et al. 2020."""
