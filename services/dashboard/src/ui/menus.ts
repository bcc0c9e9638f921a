// Id of the element that menus open in: part of the header, so that screen readers find them in a landmark.
export const MENUS = "menus";
