"""A check on the first batch of a fit: do the stages compute what the whole network computes?"""

from freewheel.check._check import check_network as check_network
