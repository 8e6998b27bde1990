"""Long filters in one dimension by overlap-save with fast Fourier transforms."""
